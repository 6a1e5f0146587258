"""placeholder until nn lands"""
